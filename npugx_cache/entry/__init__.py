"""What an entry holds, as bytes and as what runs. A restore never reaches the compiler."""
