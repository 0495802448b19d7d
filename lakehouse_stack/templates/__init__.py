"""The configuration templates shared by the embedded stack and docker/, and how they are rendered."""
