"""Layouts beyond folders of classes: which objects of a store are samples, of which class and split."""
