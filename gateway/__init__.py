"""Interlock: a gateway between agent harnesses and engines that run open models."""
