"""Files of rows, as ``stateflow state export`` writes them, as frames of the states that a job declares."""
