"""The process of a state server that fetches and checks the files of new checkpoints."""
