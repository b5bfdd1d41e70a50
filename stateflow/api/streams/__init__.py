"""The streams that a job declares.

- `data_stream`: rows without a key; `keyed_stream`: rows by key.
- `operator_input`: how an operator over keyed rows is added to the graph.
- `windowed_stream`, `all_windowed_stream`: rows in windows, with and without a key.
- `connected_streams`: two streams for one function, and broadcast streams.
- `pattern_stream`: the matches of a pattern.
- `joins/`: what the join methods return.
"""
