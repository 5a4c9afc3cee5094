"""Tests that anybody can run against a method of their own."""
