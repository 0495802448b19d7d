{#- Written by `lakehouse scaffold`, its own while unchanged: 9890795ec2ff8cee -#}
{{ cdc_vault.timeline(source_model='sts_transaction', src_pk='hk_transaction', src_hashdiff='hd_status') }}
