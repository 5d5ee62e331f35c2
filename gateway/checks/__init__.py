"""The four format tests of a model, generated from its profile: what must hold before it is served."""
