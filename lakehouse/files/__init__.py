"""Files of the home: private ones, secrets, and what another release has written down."""
