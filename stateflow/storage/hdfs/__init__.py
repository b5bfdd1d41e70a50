"""Job roots in HDFS, through its HTTP interface WebHDFS, whose servers are not trusted."""
