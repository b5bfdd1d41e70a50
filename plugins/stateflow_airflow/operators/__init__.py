"""Airflow operators, one module per subject."""
