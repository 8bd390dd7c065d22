"""The version of deltaq: what the package is released as and what every commit names as its
writer.
"""

__version__ = "0.1.0"
