"""One definition of every latency and count."""
