"""An experiment's report: one page that holds all it shows, and the files beside it."""
