package main

func (r report) writeHTML(c config) error { return nil }
