"""What a node shows of itself: functions of its parts."""
