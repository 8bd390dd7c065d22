"""For tests of programs that use deltaq, and of deltaq itself: stores that fail, clocks that obey, histories judged."""
