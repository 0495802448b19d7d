{#- Written by `lakehouse scaffold`, its own while unchanged: d5854231f6ced5a5 -#}
{{ timeline(source_model='sts_transaction', src_pk='hk_transaction', src_hashdiff='hd_status') }}
