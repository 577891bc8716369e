"""Experiments: recipes and their queue, studies, records, and the tables made from them."""
