"""Two commits of this repository under the same load, in alternating slices."""
