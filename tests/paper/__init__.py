"""One readable test a rule and a sentence: of DESIGN's own, and of the papers from which they descend."""
