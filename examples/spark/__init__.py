"""Small Spark programs, one idea each. `main(spark, folder)` of a program keeps everything in that
folder.
"""
