"""Files of the home: private files, secrets, and files that another release has written."""
