"""The record of a federation that runs elsewhere: a folder with what was sent, which an audit reads like a run's."""
