// Calls a kernel of an emulated processor. Standard input: the buffers' sizes and bytes, then the argument words.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int64_t pack_weights(int64_t *), logsumexp(int64_t *), topk(int64_t *);

static int64_t read_word(void) {
  int64_t word;
  if (fread(&word, 8, 1, stdin) != 1) exit(3);
  return word;
}

int main(int argc, char **argv) {
  char *buffers[16];
  int64_t sizes[16], words[16], num_buffers = read_word();
  for (int i = 0; i < num_buffers; i++) {
    sizes[i] = read_word();
    buffers[i] = aligned_alloc(64, (sizes[i] + 63) / 64 * 64);
    if (fread(buffers[i], 1, sizes[i], stdin) != (size_t)sizes[i]) return 3;
  }
  int64_t num_words = read_word();
  for (int i = 0; i < num_words; i++) {
    int64_t word = read_word();
    words[i] = word < 0 ? (int64_t)buffers[-word - 1] : word;  // -1 is the address of the first buffer
  }
  if (!strcmp(argv[1], "pack_weights")) pack_weights(words);
  if (!strcmp(argv[1], "logsumexp")) logsumexp(words);
  if (!strcmp(argv[1], "topk")) topk(words);
  for (int i = 0; i < num_buffers; i++) fwrite(buffers[i], 1, sizes[i], stdout);
  return 0;
}
