"""The shop: a smoothie bar whose tills write topics, and the jobs that Spark and SQL run on them.

    generator.py products     ->  products     ┐
    generator.py purchases    ->  purchases    ┼─>  pipeline.py  ->  enriched, running_totals, windows, dead_letters
    generator.py inventories  ->  inventories  ┘

The programs share only the root of the topics. `demo.py` runs them all, and shows them on a page.
`shop.ipynb` does the same step by step.
"""  # noqa: E501
