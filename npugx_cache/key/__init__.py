"""What names an entry before anything is traced: the recipe, the environment, the arguments."""
