"""Storage that outlives every process of a run: whole objects under names, created once. Runs anywhere.

| module | what it holds |
|---|---|
| `storage` | the interface, what a store must guarantee, `open_storage` |
| `files` | a folder of a local or shared file system |
| `objects` | S3, GCS and Azure, through `obstore` |
| `memory` | one process's memory, for tests and a first try |
| `self_check` | whether a store keeps what it must, tried at every start |
| `records` | numbered records: of two who create the same number, one is over |
"""
