"""Commands of `netfold`: other rooms', mounted; those of hostlib/commands/ are beside them without a module here."""
