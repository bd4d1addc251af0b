"""One file a revision, named by its number. A revision that was released is never changed."""
