"""What `import trimtab` offers: the functions and result classes behind the promised names.

`trimtab.analyze`, `compare`, `preflight`, `read` and `watch` are defined here, above every part
that they use. The command line prints the documents that their results return.
"""
