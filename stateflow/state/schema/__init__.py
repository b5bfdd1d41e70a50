"""How stored values are described, and whether they can be read as what a job declares."""
