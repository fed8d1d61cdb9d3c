"""torch's own tests of its distributed backends, run on the backend `netfold`: see __main__.py."""
