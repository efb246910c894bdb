"""One Kafka API per file. Each file has a function ``handle``; code that several APIs need is in files of its own."""
