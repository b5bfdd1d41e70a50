"""The canonical files of keyed state that is written from frames."""
