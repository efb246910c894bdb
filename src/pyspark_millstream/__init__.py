"""Spark finds this package by its name: ``spark.read.format("millstream")``."""
