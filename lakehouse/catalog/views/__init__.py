"""Views of the catalog: the two forms of a current view, and how a version is added to one."""
