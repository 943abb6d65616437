"""What a row and a prompt are: columns, checks of tables, chat templates."""
