"""What Dynamo reads during a trace without a guard. Importing these modules loads the compiler."""
