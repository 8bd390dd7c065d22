"""A template of a long-running service, which reads orders and writes invoices. Any number of
instances share the work.

    topic orders (JSON)  ->  service.py, many instances in one group  ->  topic invoices (typed)
                                                                     ->  topic orders.rejected

Copy this folder, and replace `billing.py` by what your service does.
"""
