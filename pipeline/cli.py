def add_commands(app):
    pass
