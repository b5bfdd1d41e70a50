"""The public test kit: scripted sources, a file sink, conformance suites. Nothing in the library imports it."""
