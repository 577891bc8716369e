"""Experiments: configurations, studies, records and the tables made from them."""
