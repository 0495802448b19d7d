"""The pinned downloads: manifest, download, Java runtimes, licences, bill of materials."""
