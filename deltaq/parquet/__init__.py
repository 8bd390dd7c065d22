"""Data files: Parquet as Arrow tables and as plain rows, verified before it is decoded.

Modules:

* `plain_files`: Parquet files of other programs, loaded into topics
* `segment`, `bounded_decoding`, `file_parts`: Parquet files as Arrow tables, within a limit of
  memory; `pyarrow.parquet` is known only in `parquet/`
* `tables`: whole tables, such as checkpoints
* `plain_segment`: small batches of untyped records as Parquet files, encoded and decoded without
  Arrow
* `file_columns`, `footers`, `page_headers`: what a data file must be like before it is decoded: its
  columns, and the memory that footer and pages take
* `segment_file`, `column_bounds`, `file_statistics`: a data file as the log describes it; the
  bounds by which other engines skip files, and what they are made of
"""
