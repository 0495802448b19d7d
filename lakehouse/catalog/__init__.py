"""The Iceberg catalog: rows of a Postgres database, and what PyIceberg lacks for them."""

STORE_FOLDER = "lakehouse.store-folder"  # where an object store on this machine has its files
S3_CA = "s3.ca-file"  # a property of ours: PyIceberg has none for the authority of the object store
