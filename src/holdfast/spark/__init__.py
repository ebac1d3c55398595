"""The Spark shell: the only package that imports pyspark. Importing the package itself does not."""
