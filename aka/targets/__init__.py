"""What the chips can do, what their compiler makes of a program, and how long that would take there."""
