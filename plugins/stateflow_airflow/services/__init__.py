"""What others connect to: state, served by a task (`serve`), and pages of jobs, served by the API server (`pages`)."""
