/* SPDX-License-Identifier: MIT */

/*
 * A data race, on purpose: the alarm that shows that ThreadSanitizer watches
 */

#include <pthread.h>
#include <stdio.h>

static int counter;

static void *count(void *unused)
{
        for (int i = 0; i < 1000; ++i)
                ++counter;
        return unused;
}

int main(void)
{
        pthread_t thread;

        if (pthread_create(&thread, NULL, count, NULL) != 0)
                return 1;
        count(NULL);
        pthread_join(thread, NULL);
        printf("%d\n", counter);
        return 0;
}
