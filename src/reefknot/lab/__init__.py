"""The laboratory: what makes the results of the paper, and everything that they are compared with.

Takes     the core, by its public modules alone, as anybody's own laboratory would.
Gives     data sets and networks (`zoo`), compared methods (`baselines`), runs from a configuration
          (`runs`), searches over many of them (`searching`), pages about them (`report`), and the
          commands `demo`, `run`, `search`, `report` and `methods` (`cli`).
"""
